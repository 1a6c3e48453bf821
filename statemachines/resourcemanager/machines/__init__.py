"""The state machines of a resource manager, after YARN's: RMApp, RMAppAttempt, RMContainer and RMNode."""
