"""run_programs.py ROOT DOC_PROGRAMS: runs the pages' programs that are marked `block: run`, each in a folder of its own."""

import subprocess
import sys
import tempfile

from pages import pages, read_blocks


def main(root, program):
    blocks = [block for page in pages(root) for block in read_blocks(root, page) if block.run is not None]
    failed = 0
    for block in blocks:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([program, block.where, *block.run], cwd=folder, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        print(f"{block.where}: exit code {run.returncode}\n{run.stdout}")
        failed += run.returncode != 0
    if not blocks:
        print("no page has a block that is run")
    return 1 if failed or not blocks else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
