// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/topology/topology_toml.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "backend/model/toml_reader.h"

namespace bulkhead::planner {

namespace {

/// Collects the first fault with its place, so that reading code can go straight on.
class Reader {
  public:
    explicit Reader(const std::string& file) : file_(file) {}

    void fail(const toml::node& at, const std::string& what) {
        if (status_.ok())
            status_ = absl::InvalidArgumentError(
                absl::StrCat(file_, ":", at.source().begin.line, ": ", what));
    }

    void knownKeys(const toml::table& table, std::initializer_list<std::string_view> known,
                   std::string_view where) {
        for (const auto& [key, node] : table)
            if (std::find(known.begin(), known.end(), key.str()) == known.end())
                fail(node, absl::StrCat("'", std::string(key.str()), "' is not a key of ",
                                        std::string(where)));
    }

    double number(const toml::table& table, const char* key) {
        const toml::node* node = table.get(key);
        if (!node) {
            fail(table, absl::StrCat(key, " is missing"));
            return 0;
        }
        return number(*node, key);
    }

    double number(const toml::node& node, const char* key) {
        const auto value = node.value<double>();
        if (!value || !std::isfinite(*value) || *value < 0)
            fail(node, absl::StrCat(key, " must be a number, 0 or more"));
        return value.value_or(0);
    }

    std::string text(const toml::table& table, const char* key) {
        const toml::node* node = table.get(key);
        if (!node || !node->is_string()) {
            fail(node ? *node : static_cast<const toml::node&>(table),
                 absl::StrCat(key, node ? " must be text" : " is missing"));
            return {};
        }
        return **node->as_string();
    }

    const absl::Status& status() const { return status_; }

  private:
    const std::string& file_;
    absl::Status status_;
};

Level readLevel(const toml::node& node, Reader& reader) {
    const toml::table* table = node.as_table();
    if (!table) {
        reader.fail(node, "a level is a table: [[level]]");
        return {};
    }
    reader.knownKeys(*table, {"name", "count", "gigabytes_per_second", "microseconds"}, "a level");
    Level level;
    level.name = reader.text(*table, "name");
    const toml::node* count = table->get("count");
    const auto value = count ? count->value_exact<int64_t>() : std::nullopt;
    if (!value || *value < 1 || *value > 4096)
        reader.fail(count ? *count : node, "count must be a whole number from 1 to 4096");
    else
        level.count = static_cast<uint32_t>(*value);
    level.link.bytesPerSecond = reader.number(*table, "gigabytes_per_second") * 1e9;
    level.link.seconds = reader.number(*table, "microseconds") * 1e-6;
    if (reader.status().ok() && level.link.bytesPerSecond == 0)
        reader.fail(*table->get("gigabytes_per_second"),
                    "gigabytes_per_second must be more than 0");
    return level;
}

/// One square table of the matrix; its side, 0 after a fault.
size_t readSquare(const toml::table& matrix, const char* key, std::vector<double>& out,
                  Reader& reader) {
    const toml::array* rows = matrix.get_as<toml::array>(key);
    if (!rows || rows->empty() || rows->size() > 4096) {
        reader.fail(matrix, absl::StrCat(key, " must be a list of rows, one for each node"));
        return 0;
    }
    for (const toml::node& row : *rows) {
        const toml::array* cells = row.as_array();
        if (!cells || cells->size() != rows->size()) {
            reader.fail(row, absl::StrCat("a row of ", key, " has ", cells ? cells->size() : 0,
                                          " numbers, expected ", rows->size()));
            return 0;
        }
        for (const toml::node& cell : *cells) out.push_back(reader.number(cell, key));
    }
    return rows->size();
}

void readMatrix(const toml::table& matrix, Topology& made, Reader& reader) {
    reader.knownKeys(matrix, {"gigabytes_per_second", "microseconds"}, "[matrix]");
    std::vector<double> speed, latency;
    const size_t nodes = readSquare(matrix, "gigabytes_per_second", speed, reader);
    if (nodes == 0) return;
    if (readSquare(matrix, "microseconds", latency, reader) != nodes) {
        reader.fail(matrix, "the two tables of [matrix] must be of one size");
        return;
    }
    if (made.levels.size() != 1) {
        reader.fail(matrix, "with [matrix] there is one [[level]], the host");
        return;
    }
    Level network{"network", static_cast<uint32_t>(nodes), {INFINITY, 0}};
    made.between.resize(nodes * nodes, made.levels[0].link);
    for (size_t i = 0; i < speed.size(); ++i) {
        if (i / nodes == i % nodes) continue;
        if (speed[i] == 0)
            reader.fail(matrix, absl::StrCat("gigabytes_per_second from node ", i / nodes,
                                             " to node ", i % nodes, " must be more than 0"));
        made.between[i] = {speed[i] * 1e9, latency[i] * 1e-6};
        network.link.bytesPerSecond = std::min(network.link.bytesPerSecond, speed[i] * 1e9);
        network.link.seconds = std::max(network.link.seconds, latency[i] * 1e-6);
    }
    if (nodes == 1) network.link = made.levels[0].link;
    made.levels.push_back(std::move(network));
}

/// Enough digits to come back as the same double.
std::string exact(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
}

void formatSquare(const Topology& topology, const char* key, bool speed, std::string& out) {
    const uint32_t nodes = topology.nodes();
    absl::StrAppend(&out, key, " = [");
    for (uint32_t a = 0; a < nodes; ++a) {
        absl::StrAppend(&out, a ? ", [" : "[");
        for (uint32_t b = 0; b < nodes; ++b) {
            const Link& link = topology.linkBetween(a, b);
            absl::StrAppend(&out, b ? ", " : "",
                            exact(speed ? link.bytesPerSecond / 1e9 : link.seconds / 1e-6));
        }
        absl::StrAppend(&out, "]");
    }
    absl::StrAppend(&out, "]\n");
}

}  // namespace

absl::StatusOr<Topology> parseTopology(std::string_view text, const std::string& file) {
    if (text.size() > kMostTopologyBytes)
        return absl::InvalidArgumentError(absl::StrCat(file, ": more than 1 MB is no topology"));
    if (absl::Status s = model::checkKeys(text, file); !s.ok()) return s;
    toml::table root;
    try {
        root = toml::parse(text, file);
    } catch (const toml::parse_error& error) {
        return absl::InvalidArgumentError(absl::StrCat(file, ":", error.source().begin.line, ": ",
                                                       std::string(error.description())));
    }
    Reader reader(file);
    reader.knownKeys(root, {"name", "level", "matrix"}, "a topology");
    Topology made;
    if (root.contains("name")) made.name = reader.text(root, "name");
    const toml::array* levels = root.get_as<toml::array>("level");
    if (!levels || levels->empty())
        reader.fail(root, "there is no [[level]]; the first one is the host and its GPUs");
    else
        for (const toml::node& level : *levels) made.levels.push_back(readLevel(level, reader));
    if (const toml::node* matrix = root.get("matrix"); matrix && reader.status().ok()) {
        if (!matrix->is_table())
            reader.fail(*matrix, "matrix must be a table: [matrix]");
        else
            readMatrix(*matrix->as_table(), made, reader);
    }
    if (!reader.status().ok()) return reader.status();
    if (auto status = checkTopology(made); !status.ok())
        return absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
    return made;
}

std::string formatTopology(const Topology& topology) {
    std::string out = absl::StrCat("name = \"", topology.name, "\"\n");
    for (size_t i = 0; i < topology.levels.size(); ++i) {
        if (i > 0 && !topology.between.empty()) break;
        const Level& level = topology.levels[i];
        absl::StrAppend(&out, "\n[[level]]\nname = \"", level.name, "\"\ncount = ", level.count,
                        "\ngigabytes_per_second = ", exact(level.link.bytesPerSecond / 1e9),
                        "\nmicroseconds = ", exact(level.link.seconds / 1e-6), "\n");
    }
    if (topology.between.empty()) return out;
    absl::StrAppend(&out, "\n[matrix]\n");
    formatSquare(topology, "gigabytes_per_second", true, out);
    formatSquare(topology, "microseconds", false, out);
    return out;
}

}  // namespace bulkhead::planner
