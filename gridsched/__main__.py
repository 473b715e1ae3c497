"""`python -m gridsched`."""

import sys

from gridsched.cli.main import main

sys.exit(main())
