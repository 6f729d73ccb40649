import subprocess
import sys


def test_diagnostics_are_loaded_when_asked_for_and_matplotlib_by_the_user():
    code = (
        "import sys, rnnorm\n"
        "assert 'rnnorm.diagnostics' not in sys.modules\n"
        "import rnnorm.diagnostics\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
