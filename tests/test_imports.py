"""`import superadam` costs little: torch and the standard library are all that it imports."""

import subprocess
import sys

CODE = """
import sys, torch
before = set(sys.modules)
import superadam
print(*(name for name in sys.modules.keys() - before))
"""
KNOWN = {*sys.stdlib_module_names, "superadam", "torch", "typing_extensions"}


def test_superadam_imports_torch_alone_and_not_its_compiler():
    """The compiler would take a second. What torch itself has imported by then counts as torch's."""
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    imported = run.stdout.split()
    assert "superadam.optimizer" in imported
    assert [name for name in imported if name.split(".")[0] not in KNOWN] == []
    assert [name for name in imported if name.startswith(("torch._dynamo", "torch._inductor"))] == []
