"""Small files of each format."""

from __future__ import annotations

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1000,2,T4\nn2,8000,1000,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "pod-1,10,10,1,500,T4|A10,LS,Running,0,9,5\n"
    "pod-2,10,10,0,0,,BE,Failed,10,19,15\n"
    "pod-3,10,10,0,0,,BE,Pending,20,29,\n"
)
JOB = '{"job.start.ms": 0, "job.queue.name": "q", "job.tasks": [{"container.host": "/r/n1", "duration.ms": 5}]}'
