"""`python -m orchestrator` is `tune`."""

from orchestrator.cli.app import main

if __name__ == "__main__":
    main()
