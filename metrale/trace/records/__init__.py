"""One frozen record per kind of trace line; fields carry the names that the line prints.

``CALLS`` finds a device-call class by call name, ``RULES`` every class by grammar rule. The record classes are
grouped as S6 section 3 groups the calls; all of them can be imported from here.
"""

from .base import CALLS as CALLS
from .base import RULES as RULES
from .base import Call as Call
from .base import Event as Event
from .base import Fallible as Fallible
from .base import Fx as Fx
from .base import Node as Node
from .base import Record as Record
from .base import Stage as Stage
from .clients import *  # noqa: F403
from .forward import *  # noqa: F403
from .memory import *  # noqa: F403
from .router import *  # noqa: F403
from .speculative import *  # noqa: F403
