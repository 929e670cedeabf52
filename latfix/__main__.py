"""``python -m latfix``: the command line, where its script is not on the path."""

import sys

from latfix.cli.app import main

sys.exit(main())
