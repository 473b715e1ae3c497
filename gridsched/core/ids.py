"""Names for the things the core tells apart. Owns the identifier types and nothing else.

Numbers are handed out by whoever creates the thing: the desk numbers jobs in order of arrival, the
scheduler numbers grants and instances, and whoever brings a person's wish numbers that. No number is ever used twice in
one run of the server.
"""

from typing import NewType

JobId = NewType("JobId", int)
GrantId = NewType("GrantId", int)
InstanceId = NewType("InstanceId", int)
RequestId = NewType("RequestId", int)
ModelName = NewType("ModelName", str)
DeviceName = NewType("DeviceName", str)
