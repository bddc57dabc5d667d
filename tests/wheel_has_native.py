"""Says whether an installed wheel of bdpi has its compiled learner, without importing PyTorch; cibuildwheel runs it."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

package = importlib.util.find_spec("bdpi")
assert package is not None, "bdpi is not installed"
assert package.origin is not None
found = [file for file in Path(package.origin).parent.iterdir() if file.name.startswith("_native")]
assert len(found) == 1, f"the compiled learner is missing: {found}"
loader = importlib.machinery.ExtensionFileLoader("_native", str(found[0]))
spec = importlib.util.spec_from_loader("_native", loader)
assert spec is not None
native = importlib.util.module_from_spec(spec)
loader.exec_module(native)
assert hasattr(native, "Engine"), dir(native)
print(found[0].name, sys.version.split()[0])
