// SPDX-License-Identifier: Apache-2.0
#include "backend/model/names.h"

#include <gtest/gtest.h>

namespace bulkhead::model {
namespace {

TEST(Names, WhatATerminalTakesAsAnOrderIsShown) {
    EXPECT_EQ(printable("r0 \u00e9 \u4e2d \U0001F600"), "r0 \u00e9 \u4e2d \U0001F600");
    EXPECT_EQ(printable("a\x1b[2Jb\x07"), "a\\x1b[2Jb\\x07");
    EXPECT_EQ(printable("a\nb\tc"), "a\\x0ab\\x09c");
    EXPECT_EQ(printable("a\nb\tc\r", true), "a\nb\tc\\x0d");
    EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J") << "CSI as one character";
    EXPECT_EQ(printable("\u202eabc"), "\\xe2\\x80\\xaeabc") << "text turned round";
    EXPECT_EQ(printable("\xff\xc0\xaf\xed\xa0\x80"), "\\xff\\xc0\\xaf\\xed\\xa0\\x80");
    EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");
}

TEST(Names, ACharacterThatIsCutOffIsKeptForLater) {
    const std::string text = "ab\u4e2d";
    EXPECT_EQ(wholeCharacters(text), 5u);
    EXPECT_EQ(wholeCharacters(text.substr(0, 4)), 2u);
    EXPECT_EQ(wholeCharacters(text.substr(0, 3)), 2u);
    EXPECT_EQ(wholeCharacters("ab"), 2u);
    EXPECT_EQ(wholeCharacters(""), 0u);
    EXPECT_EQ(wholeCharacters("\x80\x80\x80\x80"), 4u);
}

TEST(Names, WhatBecomesPartOfAPathIsPlain) {
    for (const char* good : {"node0", "gpu-17.rack_3", "A"}) EXPECT_TRUE(isFileName(good)) << good;
    for (const char* bad : {"", "..", ".x", "../../x", "a/b", "a b", "a\nb", "\x1b[2J"})
        EXPECT_FALSE(isFileName(bad)) << bad;
    EXPECT_FALSE(isFileName(std::string(65, 'a')));
}

}  // namespace
}  // namespace bulkhead::model
