// SPDX-License-Identifier: Apache-2.0
// The house rules that a machine can check: which room may look into which, a licence line in
// every file, a README in every folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
const fs::path kRoot = BULKHEAD_SOURCE_DIR;

/// A room and the rooms it may include from, besides itself and common (docs/architecture.md).
const std::map<std::string, std::set<std::string>> kMayLook = {
    {"backend/common", {}},
    {"backend/model", {}},
    {"backend/campaign", {"backend/model"}},
    {"backend/proto", {"backend/model"}},
    {"backend/client", {"backend/access", "backend/proto", "backend/model"}},
    {"backend/runtime/protocol", {}},
    {"backend/runtime/transport", {}},
    {"backend/runtime/collectives", {"backend/runtime/transport"}},
    {"backend/runtime/ftar", {"backend/runtime/transport"}},
    {"backend/runtime/checkpoint", {"backend/runtime/protocol"}},
    {"backend/runtime/replica",
     {"backend/runtime/protocol", "backend/runtime/checkpoint", "backend/runtime/ftar",
      "backend/runtime/collectives", "backend/runtime/transport", "backend/model"}},
    {"backend/runtime/coordinator",
     {"backend/runtime/protocol", "backend/runtime/checkpoint", "backend/runtime/ftar",
      "backend/runtime/collectives", "backend/runtime/transport", "backend/runtime/agent",
      "backend/model", "backend/campaign"}},
    {"backend/runtime/agent",
     {"backend/runtime/protocol", "backend/runtime/transport", "backend/model"}},
    {"backend/runtime/simulation",
     {"backend/runtime/protocol", "backend/runtime/checkpoint", "backend/runtime/transport",
      "backend/runtime/ftar", "backend/runtime/agent", "backend/runtime/coordinator",
      "backend/runtime/replica", "backend/model", "backend/history"}},
    {"backend/planner", {"backend/model"}},
    {"backend/interchange", {"backend/model", "backend/runtime/checkpoint"}},
    {"backend/history", {"backend/model"}},
    {"backend/access", {"backend/model", "backend/history"}},
    {"backend/front", {"backend/access"}},
    {"backend/lead", {"backend/proto"}},
    {"backend/service",
     {"backend/access", "backend/front", "backend/proto", "backend/model",
      "backend/runtime/coordinator", "backend/runtime/agent", "backend/planner",
      "backend/history"}},
    {"backend/daemon",
     {"backend/access", "backend/lead", "backend/proto", "backend/service", "backend/model",
      "backend/history", "backend/planner", "backend/runtime/coordinator", "backend/runtime/agent",
      "backend/runtime/transport"}},
    {"backend/cli",
     {"backend/access", "backend/client", "backend/proto", "backend/model", "backend/planner",
      "backend/campaign", "backend/interchange"}},
    {"app", {"backend/client", "backend/model", "backend/campaign", "backend/planner"}},
    {"plugins", {}},
};

std::string roomOf(const std::string& path) {
    std::string best;
    for (const auto& [room, _] : kMayLook)
        if (path.starts_with(room + "/") && room.size() > best.size()) best = room;
    return best;
}

std::vector<fs::path> filesBelow(const std::vector<std::string>& folders,
                                 const std::set<std::string>& extensions) {
    std::vector<fs::path> found;
    for (const std::string& folder : folders) {
        if (!fs::exists(kRoot / folder)) continue;
        for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
            if (entry.is_regular_file() && extensions.contains(entry.path().extension().string()))
                found.push_back(entry.path());
    }
    return found;
}

std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Architecture, noIncludePointsTheWrongWay) {
    const std::regex include("#include \"((?:backend|app|plugins)/[^\"]+)\"");
    size_t seen = 0;
    for (const fs::path& path :
         filesBelow({"backend", "app", "plugins"}, {".h", ".cpp", ".c", ".cu"})) {
        const std::string file = fs::relative(path, kRoot).string();
        const std::string from = roomOf(file);
        ASSERT_FALSE(from.empty()) << file << " is in no room of docs/architecture.md";
        const std::string text = read(path);
        for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
            const std::string to = roomOf((*it)[1].str());
            ++seen;
            EXPECT_TRUE(to == from || to == "backend/common" || kMayLook.at(from).contains(to))
                << file << " includes " << (*it)[1] << ", but " << from << " may not look into "
                << to;
        }
    }
    EXPECT_GT(seen, 0u);
}

TEST(Architecture, onlyThePublicApiKnowsProtobufAndOnlyTheConsoleQt) {
    const std::regex protobuf("#include [<\"](grpc|google/protobuf)");
    const std::regex qt("#include <Q[A-Z]");
    for (const fs::path& path : filesBelow({"backend", "app", "plugins"}, {".h", ".cpp", ".c"})) {
        const std::string file = fs::relative(path, kRoot).string();
        const std::string room = roomOf(file);
        const std::string text = read(path);
        if (room != "backend/proto" && room != "backend/client" && room != "backend/service" &&
            room != "backend/lead" && room != "backend/daemon") {
            EXPECT_FALSE(std::regex_search(text, protobuf)) << file;
        }
        if (room != "app") {
            EXPECT_FALSE(std::regex_search(text, qt)) << file;
        }
    }
}

TEST(Architecture, everyFileNamesItsLicence) {
    for (const fs::path& path : filesBelow({"backend", "app", "plugins", "tests", "bench"},
                                           {".h", ".cpp", ".c", ".cu", ".proto"})) {
        const std::string file = fs::relative(path, kRoot).string();
        const bool gpl = file.starts_with("app/") || file.starts_with("tests/app/") ||
                         file.starts_with("tests/gui/") || file.starts_with("tests/golden/") ||
                         file.starts_with("bench/console/");
        const std::string expected =
            std::string("SPDX-License-Identifier: ") + (gpl ? "GPL-3.0-only" : "Apache-2.0");
        EXPECT_NE(read(path).substr(0, 200).find(expected), std::string::npos)
            << file << " should begin with " << expected;
    }
}

TEST(Architecture, everyRoomHasAReadme) {
    for (const auto& [room, _] : kMayLook) {
        if (!fs::exists(kRoot / room / "CMakeLists.txt")) continue;
        EXPECT_TRUE(fs::exists(kRoot / room / "README.md")) << room;
    }
}

}  // namespace
