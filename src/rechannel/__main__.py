"""``python -m rechannel`` is the command ``rechannel``."""

from rechannel.daemon.cli.main import main

main()
