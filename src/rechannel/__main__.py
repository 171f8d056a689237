"""``python -m rechannel`` is the command ``rechannel``."""

from rechannel.daemon.cli.main import main

if __name__ == "__main__":
    main()
