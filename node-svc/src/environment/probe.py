import glob
import json
import os
import sys


def has(module):
    try:
        __import__(module)
    except Exception:
        return False
    return True


def pip_wheel():
    if not has("ensurepip"):
        return None
    import ensurepip

    folders = [
        os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"),
        getattr(ensurepip, "_WHEEL_PKG_DIR", None),
        "/usr/share/python-wheels",
    ]
    for folder in filter(None, folders):
        wheels = sorted(glob.glob(os.path.join(str(folder), "pip-*.whl")))
        if wheels:
            return wheels[-1]
    return None


print(
    json.dumps(
        {
            "executable": sys.executable,
            "version": list(sys.version_info[:3]),
            "base_prefix": os.path.realpath(sys.base_prefix),
            "venv": has("venv"),
            "pip_wheel": pip_wheel(),
            "pip": has("pip"),
            "virtualenv": has("virtualenv"),
        }
    )
)
