// SPDX-License-Identifier: Apache-2.0
// bench/mutants finds its places by libclang, which few have; that they are still in the sources
// can be told without it, in the change that takes one away.
#include <gtest/gtest.h>

#include <toml++/toml.h>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace bulkhead {
namespace {

std::string squeezed(const std::string& text) {
    std::istringstream words(text);
    std::string out;
    for (std::string word; words >> word;) out += (out.empty() ? "" : " ") + word;
    return out;
}

std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST(EquivalentMutants, EachHasAReasonAndIsStillInItsSource) {
    const std::string root = BULKHEAD_SOURCE;
    const toml::table all = toml::parse_file(root + "/bench/mutants/equivalent.toml");
    const toml::array* entries = all["equivalent"].as_array();
    ASSERT_NE(entries, nullptr);
    for (const toml::node& node : *entries) {
        const toml::table& entry = *node.as_table();
        const std::string file = entry["file"].value_or(std::string());
        const std::string place = squeezed(entry["place"].value_or(std::string()));
        EXPECT_FALSE(entry["reason"].value_or(std::string()).empty()) << file << ": " << place;
        ASSERT_FALSE(place.empty()) << file;
        const std::string source = squeezed(read(root + "/" + file));
        EXPECT_NE(source.find(place), std::string::npos)
            << "bench/mutants/equivalent.toml: " << file << " no longer has: " << place;
    }
}

/// A test that the bench does not know of kills nothing there.
TEST(EquivalentMutants, EveryTestOfTheRoomsIsRunAgainstTheBugs) {
    const std::string root = BULKHEAD_SOURCE;
    const std::string bench = read(root + "/bench/mutants/mutants.py");
    const std::regex named("bulkhead_test\\((\\w+)");
    size_t tests = 0;
    for (const std::string room : {"protocol", "coordinator", "replica"}) {
        const std::string lists = read(root + "/tests/" + room + "/CMakeLists.txt");
        for (std::sregex_iterator it(lists.begin(), lists.end(), named), end; it != end; ++it) {
            ++tests;
            EXPECT_NE(bench.find("\"" + it->str(1) + "\""), std::string::npos)
                << it->str(1) << " is missing in bench/mutants/mutants.py";
        }
    }
    EXPECT_GE(tests, 15u);
}

}  // namespace
}  // namespace bulkhead
