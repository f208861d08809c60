import importlib.metadata
import json
import os
import sys

installed = {
    "%s==%s" % (each.metadata["Name"], each.version)
    for each in importlib.metadata.distributions()
    if each.metadata["Name"]
}
print(
    json.dumps(
        {
            "version": "%d.%d.%d" % sys.version_info[:3],
            "base_prefix": os.path.realpath(sys.base_prefix),
            "installed": sorted(installed, key=str.lower),
        }
    )
)
