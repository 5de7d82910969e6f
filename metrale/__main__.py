"""``python -m metrale`` is the same program as the ``metrale`` command."""

from metrale.cli.main import main

if __name__ == "__main__":
    main()
