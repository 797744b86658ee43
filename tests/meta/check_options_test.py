"""Each rule of check_options.py goes red on a page or a header that breaks it, and a good pair passes."""

import tempfile
import unittest
from pathlib import Path

from check_options import STRUCTS, check, fields

OPTIONS = """
enum class Strategy : uint8_t {
  full_shard,  // split; everywhere
  no_shard,
};
struct UnitOptions {
  std::optional<bool> reshard_after_forward = {};
};
struct Reproducible {
  int microbatches = 1;
};
struct ModuleInfo {
  std::string path;
};
struct ShardOptions {
  Strategy strategy = Strategy::full_shard;
  std::function<UnitOptions(const std::string& unit)> unit = {};
};
"""
PRECISION = """
struct Precision {
  std::optional<at::ScalarType> param =
      {};  // of forward; and backward
  bool cast_inputs = true;
};
"""
PAGE = """# Options
### `ShardOptions`
| field | default | meaning |
|---|---|---|
| `strategy` | `full_shard` | `Strategy::full_shard`, `Strategy::no_shard` |
| `unit` | `{}`: none | see `UnitOptions::reshard_after_forward` |

### `Precision`
| field | default |
|---|---|
| `param` | `{}` |
| `cast_inputs` | `true` |

### `UnitOptions`
| field | default |
|---|---|
| `reshard_after_forward` | `{}` |

### `Reproducible`
| field | default |
|---|---|
| `microbatches` | `1` |

### `FullParamsOptions`
| field | default |
|---|---|
| `offload` | `false` |

### `Offload`
| field | default |
|---|---|
| `params` | `false` |

### `KeepGatheredOptions`
| field | default |
|---|---|
| `module` | `{}` |

### `NoSyncOptions`
| field | default |
|---|---|
| `rows_only` | `false` |

### `CommOptions`
| field | default |
|---|---|
| `timeout` | `300` |

### `InitOptions`
| field | default |
|---|---|
| `rank` | `{}` |

### `SaveOptions`
| field | default |
|---|---|
| `keep_last` | `0` |

### `LoadOptions`
| field | default |
|---|---|
| `strict` | `true` |

### `ScheduleOptions`
| field | default |
|---|---|
| `warmup_steps` | `0` |

### `PlannedRanks`
| field | default |
|---|---|
| `ranks` | `1` |
"""
GOOD = {
    "docs/options.md": PAGE,
    "include/fsdp/options.h": OPTIONS,
    "include/fsdp/precision.h": PRECISION,
    "include/fsdp/memory_options.h": "struct Offload {\n  bool params = false;\n};\n",
    "include/fsdp/scopes.h": "struct NoSyncOptions {\n  bool rows_only = false;\n};\nstruct KeepGatheredOptions {\n  std::string module = {};\n};\n"
                              "struct FullParamsOptions {\n  bool offload = false;\n};\n",
    "include/fsdp/world.h": "struct InitOptions {\n  std::optional<int> rank = {};\n};\n",
    "include/fsdp/comm_options.h": "struct CommOptions {\n  std::chrono::milliseconds timeout{300};  // of waits\n};\n",
    "include/fsdp/checkpoint.h": "struct SaveOptions {\n  int64_t keep_last = 0;\n};\n"
                                 "struct LoadOptions {\n  bool strict = true;\n};\n",
    "include/fsdp/schedule.h": "struct ScheduleOptions {\n  int64_t warmup_steps = 0;\n};\n",
    "include/fsdp/sharding_plan.h": "struct PlannedRanks {\n  int ranks = 1;\n};\n",
}


class CheckOptions(unittest.TestCase):
    def breaches(self, name="docs/options.md", old="", new=""):
        self.assertIn(old, GOOD[name])
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**GOOD, name: GOOD[name].replace(old, new, 1) if old else GOOD[name]}.items():
                target = Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            return check(folder)

    def assert_red(self, name, old, new, words):
        found = self.breaches(name, old, new)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_good_page_passes(self):
        self.assertEqual(self.breaches(), [])

    def test_field_that_the_page_lacks(self):
        self.assert_red("docs/options.md", "| `cast_inputs` | `true` |\n", "", "Precision::cast_inputs is not in the table")
        self.assert_red("include/fsdp/options.h", "int microbatches", "uint64_t seed = 0;\n  int microbatches",
                        "Reproducible::seed is not in the table")

    def test_field_that_the_header_lacks(self):
        self.assert_red("docs/options.md", "| `param` |", "| `parm` | `{}` |\n| `param` |", "no field 'parm'")
        self.assert_red("include/fsdp/precision.h", "  bool cast_inputs = true;\n", "", "no field 'cast_inputs'")

    def test_other_default(self):
        self.assert_red("docs/options.md", "`true`", "`false`", "cast_inputs is `true` in the header, and `false` here")
        self.assert_red("include/fsdp/options.h", "Strategy::full_shard", "Strategy::no_shard", "`no_shard` in the header")
        self.assert_red("include/fsdp/comm_options.h", "{300}", "{500}", "`500` in the header, and `300` here")
        self.assert_red("include/fsdp/options.h", "microbatches = 1", "microbatches", "`` in the header")

    def test_missing_table(self):
        self.assert_red("docs/options.md", "### `CommOptions`", "### Communication", "no table of CommOptions")

    def test_unknown_names_in_other_tables(self):
        self.assert_red("docs/options.md", "`UnitOptions::reshard_after_forward`", "`UnitOptions::reshard`",
                        "UnitOptions::reshard does not exist")
        self.assert_red("docs/options.md", "`Strategy::full_shard`,", "`Strategy::full_shard`, `Strategy::zero9`,",
                        "Strategy::zero9 does not exist")

    def test_strategy_that_is_not_named(self):
        self.assert_red("docs/options.md", ", `Strategy::no_shard`", "", "Strategy::no_shard is not named")

    def test_struct_without_a_table(self):
        self.assert_red("include/fsdp/options.h", "struct ModuleInfo {", "struct Wishes {", "Wishes is not known")

    def test_header_that_cannot_be_read(self):
        found = self.breaches("include/fsdp/comm_options.h", "struct CommOptions", "struct Options")
        self.assertIn("no fields of CommOptions were found", found)

    def test_fields_of_our_headers(self):
        root = Path(__file__).parents[2]
        for struct, path in STRUCTS.items():
            text = (root / path).read_text(encoding="utf-8")
            self.assertGreaterEqual(len(fields(text, struct)), 1, struct)


if __name__ == "__main__":
    unittest.main()
