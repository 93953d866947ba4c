# SPDX-License-Identifier: Apache-2.0
"""Examples that comment_subjects.py must judge as a reader would."""
import unittest

import comment_subjects

LACKING = [
    "What was so far is not needed any more.",
    "Who may call.",
    "Whether the queue is empty.",
    "Why there is none, where there is none.",
    "How often a thread yields.",
    "Whose state it is; -1: nobody's.",
    "Of the thread that owns it.",
    "Where readers find `bytes`.",
    "As parseRule reads it.",
    "From here on stats() counts.",
    "For want of slots.",
]
WHOLE = [
    "Discards the previous snapshot.",
    "Authenticates callers.",
    "True when the queue is empty.",
    "The reason, if there is none.",
    "Where all members share memory, they must find everything there.",
    "As the kernel may reuse a descriptor, the block has a number too.",
    "From 64 KiB on, a ring is faster.",
    "Who calls?",
    "`of` is 0 until it has begun.",
    "Offset of the payload.",
    "Asks again.",
    "Fortunately rare.",
]


class LacksSubject(unittest.TestCase):
    def test_finds_noun_clauses_and_genitives(self):
        for comment in LACKING:
            self.assertTrue(comment_subjects.lacks_subject(comment), comment)

    def test_accepts_sentences_and_noun_phrases(self):
        for comment in WHOLE:
            self.assertFalse(comment_subjects.lacks_subject(comment), comment)

    def test_a_declared_name_is_the_subject_of_a_qualifier_behind_it(self):
        self.assertFalse(comment_subjects.lacks_subject("of the payload", behind_code=True))
        self.assertTrue(comment_subjects.lacks_subject("what it was told last", behind_code=True))


class Blocks(unittest.TestCase):
    def test_joins_lines_and_separates_blocks(self):
        text = ("// SPDX-License-Identifier: Apache-2.0\n"
                "/// One two\n/// three.\n"
                "int a = 0;  ///< four\n"
                "    // five\n\n    // six\n"
                "//\n")
        self.assertEqual(comment_subjects.blocks(text),
                         [(2, False, "One two three."), (4, True, "four"), (5, False, "five"),
                          (7, False, "six")])

    def test_an_address_in_a_string_is_no_comment(self):
        self.assertEqual(comment_subjects.blocks('open("http://example.org/ what");\n'), [])
        self.assertEqual(comment_subjects.blocks("int b;  // NOLINT(bugprone-x)\n"), [])

    def test_the_folder_of_a_source(self):
        self.assertEqual(comment_subjects.folder_of("backend/runtime/ftar/ring.cpp"),
                         "backend/runtime/ftar")
        self.assertEqual(comment_subjects.folder_of("backend/model/campaign/a.h"), "backend/model")
        self.assertEqual(comment_subjects.folder_of("app/main.cpp"), "app")


if __name__ == "__main__":
    unittest.main()
