"""torch_names.py ROOT: do the names exist that Python blocks take from PyTorch, and the keyword arguments they give?

Runs with a Python that has torch. Of a block only the imports are run; names imported by earlier blocks of the page count.
"""

import ast
import importlib
import inspect
import sys

from pages import pages, read_blocks


def bind(node, names):
    """Runs an import, and adds what it binds. Yields messages."""
    for alias in node.names:
        try:
            if isinstance(node, ast.Import):
                module = importlib.import_module(alias.name)
                names[alias.asname or alias.name.partition(".")[0]] = \
                    module if alias.asname else importlib.import_module(alias.name.partition(".")[0])
            else:
                module = importlib.import_module(node.module)
                value = getattr(module, alias.name, None)
                names[alias.asname or alias.name] = \
                    value if value is not None else importlib.import_module(f"{node.module}.{alias.name}")
        except ImportError as error:
            if (getattr(node, "module", None) or alias.name).partition(".")[0] == "torch":
                yield node.lineno, str(error)


def resolve(node, names):
    """(value, message) of a dotted name whose first part was imported; (None, "") for another."""
    if isinstance(node, ast.Name):
        return names.get(node.id), ""
    if isinstance(node, ast.Attribute):
        value, message = resolve(node.value, names)
        if value is None or message or not (inspect.ismodule(value) or inspect.isclass(value)):
            return None, message
        if not hasattr(value, node.attr):
            return None, f"{getattr(value, '__name__', value)} has no {node.attr}"
        return getattr(value, node.attr), ""
    return None, ""


def unknown_keywords(call, callee):
    if not callable(callee):
        return
    try:
        parameters = inspect.signature(callee).parameters
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for keyword in call.keywords:
        if keyword.arg and keyword.arg not in parameters:
            yield call.lineno, f"{getattr(callee, '__name__', callee)}() has no argument {keyword.arg}"


def check(code, names):
    """(line, message) of every name that does not exist; adds the imports to `names`."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from bind(node, names)
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = {name: value for name, value in names.items() if name not in own}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _, message = resolve(node, known)
            if message:
                yield node.lineno, message
        elif isinstance(node, ast.Call):
            yield from unknown_keywords(node, resolve(node.func, known)[0])


def main(root):
    found, blocks = set(), 0
    for page in pages(root):
        names = {}
        for block in read_blocks(root, page):
            if block.language == "python":
                blocks += 1
                found |= {f"{page}:{block.line + line - 1}: {message}" for line, message in check(block.code, names)}
    print("\n".join(sorted(found)) or f"{blocks} Python blocks name only what exists")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
