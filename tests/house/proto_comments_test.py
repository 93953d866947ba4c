# SPDX-License-Identifier: Apache-2.0
"""Examples that proto_comments.py must judge as a reader would."""
import unittest

import proto_comments


class Undocumented(unittest.TestCase):
    def test_a_comment_above_or_behind_counts(self):
        text = ("// A range.\nmessage Range {\n  // First.\n  uint64 begin = 1;\n"
                "  uint64 end = 2;  // After the last.\n}\n")
        self.assertEqual(proto_comments.undocumented(text), [])

    def test_finds_messages_fields_values_and_methods(self):
        text = ("message Range {\n  optional uint64 begin = 1;\n  map<string, int32> by = 2;\n}\n\n"
                "enum Kind {\n  KIND_A = 0;\n}\n\nservice Jobs {\n  rpc Act(A) returns (B);\n}\n")
        self.assertEqual([name for _, name in proto_comments.undocumented(text)],
                         ["Range", "begin", "by", "Kind", "KIND_A", "Jobs", "Act"])

    def test_a_comment_belongs_to_one_declaration_unless_it_says_all(self):
        one = "  // Bounds.\n  uint64 from = 1;\n  uint64 to = 2;\n"
        self.assertEqual([name for _, name in proto_comments.undocumented(one)], ["to"])
        self.assertEqual(proto_comments.undocumented(one.replace("Bounds", "Both: bounds")), [])


if __name__ == "__main__":
    unittest.main()
