"""`python -m dispatcher`: the `dispatcher` command."""

from dispatcher.cli import main

if __name__ == "__main__":
    main()
