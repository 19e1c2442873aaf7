"""The reader of pages, on small pages whose parts are written out here."""

from tests.docs.pages import Block, Text, commands, parse, project_files, simple_commands

PAGE = """\
# One *page*: `of code`

[a](b.md#c) and ![p](q.png)
then `training.max_steps` and **the `bold` part**
<a id="here"></a>

<img alt="x" src="pictures/z.svg">

## 训练：一个模型
## Twice
## Twice

| a | `b` |
| --- | --- |
| 1,000 | **2.5** |

- in a list
  ```bash
  echo 1
  ```

```
plain
```

    indented
"""


def test_parts_of_a_page():
    page = parse(PAGE)
    assert [(one.level, one.anchor, one.line) for one in page.headings] == [
        (1, "one-page-of-code", 1),
        (2, "训练一个模型", 9),
        (2, "twice", 10),
        (2, "twice-1", 11),
    ]
    assert [(one.text, one.line) for one in page.links] == [
        ("b.md#c", 3),
        ("q.png", 3),
        ("pictures/z.svg", 7),
    ]
    assert "here" in page.anchors and "twice-1" in page.anchors
    assert [(one.text, one.line) for one in page.spans] == [
        ("of code", 1),
        ("training.max_steps", 4),
        ("bold", 4),
        ("b", 13),
    ]
    assert page.bold == [Text("the `bold` part", 4), Text("2.5", 15)]
    assert page.tables == [[["a", "`b`"], ["1,000", "**2.5**"]]]
    assert [(one.language, one.text, one.line) for one in page.blocks] == [
        ("bash", "echo 1\n", 19),
        ("", "plain\n", 23),
        ("indented", "indented\n", 26),
    ]


def test_commands_of_a_block():
    text = """\
# only a comment
bash scripts/train.sh a.yaml \\
    x=1   # and why

echo "a # b" | cat > out.txt
python -c "
print(1)  # no comment of the shell
"
cat > my.yaml <<'END'
# a line
END
ls#not-a-comment
"""
    found = commands(Block(text, 10, "bash"))
    assert [one.line for one in found] == [11, 14, 15, 18, 21]
    assert [one.text for one in found] == [
        "bash scripts/train.sh a.yaml x=1",
        'echo "a # b" | cat > out.txt',
        'python -c "\nprint(1)  # no comment of the shell\n"',
        "cat > my.yaml <<'END'\n# a line\nEND",
        "ls#not-a-comment",
    ]


def test_programs_of_a_command():
    (first, second) = simple_commands('A=1 echo "x y; z" 2> log.txt | bash t.sh m < in > out')
    assert first.environment == {"A": "1"} and first.words == ["echo", "x y; z"]
    assert first.redirected == ["log.txt"]
    assert second.words == ["bash", "t.sh", "m"] and second.redirected == ["in", "out"]
    names = [one.words[0] for one in simple_commands("cd a && ls; cat <<END > b\nrm x\nEND")]
    assert names == ["cd", "ls", "cat"]


def test_files_of_the_project():
    assert {"README.md", "configs", "configs/demo.yaml", "data/demo/train.en"} <= project_files()
    assert not any(name.startswith((".git/", "runs")) for name in project_files())
