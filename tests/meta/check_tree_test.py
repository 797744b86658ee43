"""Each rule of check_tree.py goes red on a small tree that breaks it, and a good tree passes."""

import tempfile
import unittest
from pathlib import Path

from check_tree import check

GOOD = {
    "include/fsdp/fsdp.h": "#include <ATen/core/Tensor.h>\n#include <fsdp/error.h>\n",
    "include/fsdp/error.h": "#include <stdexcept>\n",
    "src/base/log.h": "#include <fsdp/error.h>\n",
    "src/kernels/cpu/sum.cpp": '#include "kernels/cpu/sum.h"\n#include "base/log.h"\n',
    "src/kernels/cpu/sum.h": "#include <cstdint>\n",
    "src/comm/comm.cpp": '#include <fsdp/fsdp.h>\n#include "kernels/cpu/sum.h"\n#include "base/log.h"\n',
    "src/comm/backend.h": "",
    "src/comm/make_backend.cpp": '#include "comm/nccl/nccl.h"\n#include "comm/shm/shm.h"\n',
    "src/comm/nccl/nccl.h": '#include "comm/backend.h"\n',
    "src/comm/nccl/nccl.cpp": '#include "comm/nccl/nccl.h"\n',
    "src/comm/shared/gate.h": '#include "comm/backend.h"\n',
    "src/comm/shm/shm.h": '#include "comm/backend.h"\n#include "comm/shared/gate.h"\n',
    "examples/01_hello/main.cpp": "#include <fsdp/fsdp.h>\n#include <torch/torch.h>\n",
    "models/gpt2.h": "#include <torch/torch.h>\n",
    "app/main.cpp": '#include <fsdp/error.h>\n#include "trainer/data/text.h"\n',
    "app/config/schema.h": "#include <string>\n",
    "trainer/run.cpp": '#include <fsdp/fsdp.h>\n#include "app/config/schema.h"\n#include "trainer/data/text.h"\n',
    "trainer/run.h": "",
    "trainer/data/text.h": "",
    "tests/train/data/text_test.cpp": '#include "trainer/data/text.h"\n',
    "tests/train/data/CMakeLists.txt": "fsdp_train_test(data SOURCES text_test.cpp)\n",
    "bench/comm.cpp": '#include <fsdp/fsdp.h>\n#include "models/gpt2.h"\n',
    "tests/unit/base/log_test.cpp": '#include "base/log.h"\n',
    "tests/CMakeLists.txt": "fsdp_test_binary(NAME unit_tests SOURCES unit/base/log_test.cpp)\n",
    "README.md": "# A library\n\n| word | meaning |\n|---|---|\n",
}


def words(columns):
    """A sentence of exactly so many columns."""
    return ("word " * columns)[:columns - 1] + "."


class CheckTree(unittest.TestCase):
    def breaches(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **changes}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check(folder)

    def assert_red(self, changes, *words):
        found = self.breaches(changes)
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_good_tree_passes(self):
        self.assertEqual(self.breaches({}), [])

    def test_unregistered_test(self):
        self.assert_red({"tests/behaviour/crash_test.cpp": ""}, "behaviour/crash_test.cpp", "never built")

    def test_test_named_in_a_comment_only(self):
        self.assert_red({"tests/CMakeLists.txt": "# unit/base/log_test.cpp\n"}, "log_test.cpp", "never built")

    def test_test_that_its_own_folder_does_not_name(self):
        self.assert_red({"tests/train/data/CMakeLists.txt": "# text_test.cpp\n"}, "train/data/text_test.cpp", "never built")

    def test_include_against_the_arrows(self):
        self.assert_red({"src/base/env.cpp": '#include "comm/backend.h"\n'}, "base may not see comm")

    def test_siblings_do_not_see_each_other(self):
        self.assert_red({"src/launch/store.cpp": '#include "monitor/counters.h"\n', "src/monitor/counters.h": ""},
                        "launch may not see monitor")

    def test_relative_include_against_the_arrows(self):
        self.assert_red({"src/base/env.cpp": '#include "../kernels/cpu/sum.h"\n'}, "base may not see kernels")

    def test_angle_include_against_the_arrows(self):
        self.assert_red({"src/base/env.cpp": "#  include <kernels/cpu/sum.h>\n"}, "base may not see kernels")

    def test_backends_see_each_other(self):
        for folder in ("nccl", "c10d", "local"):
            self.assert_red({f"src/comm/{folder}/watch.cpp": '#include "comm/shm/shm.h"\n'},
                            f"comm/{folder} may not see comm/shm")
        self.assert_red({"src/comm/shm/watch.cpp": '#include "../nccl/nccl.h"\n'}, "comm/shm may not see comm/nccl")

    def test_backends_that_do_not_share_memory_see_its_engine(self):
        for folder in ("nccl", "c10d"):
            self.assert_red({f"src/comm/{folder}/wait.cpp": '#include "comm/shared/gate.h"\n'},
                            f"comm/{folder} may not see comm/shared")

    def test_engine_sees_a_backend(self):
        self.assert_red({"src/comm/shared/gate.cpp": '#include "comm/shm/shm.h"\n'}, "comm/shared may not see comm/shm")

    def test_comm_itself_sees_a_backend(self):
        self.assert_red({"src/comm/await.cpp": '#include "comm/shm/shm.h"\n'}, "comm/await.cpp may not see comm/shm")

    def test_unknown_folder_of_comm(self):
        self.assert_red({"src/comm/ucx/ucx.cpp": ""}, "src/comm/ucx is no folder of comm")

    def test_src_includes_tests(self):
        self.assert_red({"src/comm/fault.cpp": '#include "tests/support/run_ranks.h"\n',
                         "tests/support/run_ranks.h": ""}, "outside src/ and include/")

    def test_unknown_folder(self):
        self.assert_red({"src/utils/misc.cpp": ""}, "src/utils is no folder")

    def test_torch_in_a_pure_folder(self):
        for folder in ("kernels", "layout", "plan"):
            for header in ("ATen/ATen.h", "c10/util/Half.h", "torch/torch.h"):
                self.assert_red({f"src/{folder}/x.cpp": f"#include <{header}>\n"}, header, f"{folder} is pure")

    def test_torch_in_a_pure_folder_through_our_header(self):
        self.assert_red({"src/plan/plan.cpp": '#include "base/dtype.h"\n',
                         "src/base/dtype.h": "#include <fsdp/fsdp.h>\n"}, "ATen/core/Tensor.h", "plan is pure")

    def test_users_see_src(self):
        for folder in ("app", "trainer", "examples/02_train", "bench"):
            self.assert_red({f"{folder}/main.cpp": '#include "base/log.h"\n'}, "sees include/fsdp", "only")

    def test_app_and_trainer_see_parts_of_each_other(self):
        self.assert_red({"app/main.cpp": '#include "trainer/run.h"\n'}, "trainer/data, trainer/watch")
        self.assert_red({"trainer/run.cpp": '#include "app/launch/job.h"\n', "app/launch/job.h": ""}, "app/config")
        self.assert_red({"examples/01_hello/main.cpp": '#include "trainer/run.h"\n'}, "include/fsdp and models only")

    def test_command_reaches_torch(self):
        for path in ("app/main.cpp", "trainer/data/text.cpp", "trainer/watch/line.cpp"):
            self.assert_red({path: "#include <fsdp/fsdp.h>\n"}, path, "ATen/core/Tensor.h", "needs no LibTorch")

    def test_models_see_fsdp(self):
        self.assert_red({"models/llama.h": "#include <fsdp/fsdp.h>\n"}, "models see nothing of fsdp")

    def test_public_header_shows_a_private_library(self):
        for header in ("gtest/gtest.h", "benchmark/benchmark.h", "CLI/CLI.hpp", "yaml-cpp/yaml.h",
                       "nlohmann/json.hpp", "xxhash.h", "nccl.h", "ATen/record_function.h"):
            self.assert_red({"include/fsdp/comm.h": f"#include <{header}>\n"}, f"shows {header}")

    def test_public_header_includes_src(self):
        self.assert_red({"include/fsdp/comm.h": '#include "base/log.h"\n'}, "not public")

    def test_long_public_header(self):
        self.assertEqual(self.breaches({"include/fsdp/comm.h": "\n" * 150}), [])
        self.assert_red({"include/fsdp/comm.h": "\n" * 151}, "151 lines")

    def test_long_source(self):
        self.assert_red({"src/base/a.cpp": "int a;\n" * 301}, "src/base/a.cpp", "301 lines")
        self.assert_red({"trainer/a.cpp": "int a;\n" * 301}, "trainer/a.cpp", "301 lines")
        self.assertEqual(self.breaches({"src/base/a.cpp": "int a;\n" * 300}), [])

    def test_runtime_names_cuda(self):
        for code in ("if (device.is_cuda()) return;", 'log("a CUDA device");', "#include <ATen/cuda/CUDAContext.h>"):
            self.assert_red({"src/runtime/engine.cpp": f"int a;\n{code}\n"}, "src/runtime/engine.cpp:2", "CUDA")

    def test_cuda_elsewhere_and_in_comments(self):
        self.assertEqual(self.breaches({"src/launch/device.cpp": "if (device.is_cuda()) return;\n",
                                        "src/runtime/engine.cpp": "return;  // on CUDA too\n"}), [])

    def test_long_line_of_a_page(self):
        for name in ("README.md", "src/README.md", "docs/design.md", "examples/01_hello/README.md"):
            self.assertEqual(self.breaches({name: f"# Title\n{words(110)}\n"}), [])
            self.assert_red({name: f"# Title\n{words(111)}\n"}, f"{name}:2", "111 columns", "at most 110")

    def test_long_line_of_an_example_on_a_page(self):
        self.assert_red({"README.md": f"```\n{words(111)}\n```\n"}, "README.md:2")
        self.assert_red({"README.md": f"```\n| {words(109)}\n```\n"}, "README.md:2")

    def test_row_of_a_table(self):
        row = lambda columns: f"| {words(columns - 4)} |\n"
        self.assertEqual(self.breaches({"README.md": row(200)}), [])
        self.assert_red({"README.md": row(201)}, "201 columns", "at most 200")
        self.assert_red({"README.md": f"```\n```\n{row(201)}"}, "README.md:3")

    def test_long_word_on_a_page(self):
        self.assertEqual(self.breaches({"README.md": "x" * 300 + f"\n- {'x' * 300}\n"}), [])

    def test_pages_that_are_not_ours(self):
        for folder in ("build", ".venv/lib", ".git", "tests/consumers/build"):
            self.assertEqual(self.breaches({f"{folder}/page.md": words(300)}), [])

    def test_long_comment(self):
        for name in ("include/fsdp/comm.h", "src/base/log.cpp", "src/kernels/cuda/sum.cu"):
            self.assertEqual(self.breaches({name: f"// {words(107)}\n"}), [])
            self.assert_red({name: f"int a;\n// {words(108)}\n"}, f"{name}:2", "111 columns")
            self.assert_red({name: f"int a;  // {words(100)}\n"}, f"{name}:1", "111 columns")

    def test_long_lines_that_are_no_comments(self):
        self.assertEqual(self.breaches({"src/base/log.cpp": f'auto a = "https://{words(200)}";\n',
                                        "src/base/log.h": f"// {'x' * 300}\n",
                                        "tests/unit/base/log_test.cpp": f"// {words(300)}\n"}), [])


if __name__ == "__main__":
    unittest.main()
