"""Where the units of a plan run: in this process, or in several that are watched and replaced."""

from fringe.engines.base import Account as Account
from fringe.engines.base import Job as Job
from fringe.engines.base import Report as Report
from fringe.engines.here import run_here as run_here
from fringe.engines.processes import run_processes as run_processes
from fringe.engines.run import Finished as Finished
from fringe.engines.run import How as How
from fringe.engines.run import Interrupted as Interrupted
from fringe.engines.run import Progress as Progress
from fringe.engines.run import interruptible as interruptible
from fringe.engines.run import require_same_logits as require_same_logits
from fringe.engines.run import run_plan as run_plan
