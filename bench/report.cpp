// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace bulkhead::bench {

namespace {

std::string processor() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown processor";
}

std::string machine() {
    return processor() + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
}

}  // namespace

void addPlace(CLI::App& app, Place& place) {
    app.add_option("--root", place.root, "the project's folder")->capture_default_str();
    app.add_option("--out", place.out, "folder for results and scratch")->capture_default_str();
}

void die(const absl::Status& status) {
    std::fprintf(stderr, "bench: %s\n", std::string(status.message()).c_str());
    std::exit(2);
}

void need(const absl::Status& status) {
    if (!status.ok()) die(status);
}

Spread spreadOf(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return {n, values.front(), median, values.back()};
}

std::string number(double value, int decimals) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

Report::Report(std::string name, std::vector<std::string> columns)
    : name_(std::move(name)), columns_(std::move(columns)) {}

void Report::row(std::vector<std::string> cells) {
    cells.resize(columns_.size());
    rows_.push_back(std::move(cells));
}

void Report::note(std::string line) {
    notes_.push_back(std::move(line));
}

void Report::atMost(std::string name, double figure, double bound, std::string unit) {
    bars_.push_back({std::move(name), figure, bound, std::move(unit), false});
}

void Report::atLeast(std::string name, double figure, double bound, std::string unit) {
    bars_.push_back({std::move(name), figure, bound, std::move(unit), true});
}

int Report::finish(const std::string& folder) const {
    std::printf("\n%s on %s\n", name_.c_str(), machine().c_str());
    for (const std::string& line : notes_) std::printf("%s\n", line.c_str());

    std::vector<size_t> widths;
    for (const std::string& c : columns_) widths.push_back(c.size());
    for (const auto& r : rows_)
        for (size_t i = 0; i < r.size(); ++i) widths[i] = std::max(widths[i], r[i].size());
    const auto print = [&](const std::vector<std::string>& cells) {
        for (size_t i = 0; i < cells.size(); ++i)
            std::printf(i == 0 ? "%-*s" : "  %*s", static_cast<int>(widths[i]), cells[i].c_str());
        std::printf("\n");
    };
    print(columns_);
    for (const auto& r : rows_) print(r);
    for (const Bar& b : bars_)
        std::printf("%s  %s: %s %s (%s %s)\n", b.holds() ? "holds " : "MISSED", b.name.c_str(),
                    number(b.figure, 2).c_str(), b.unit.c_str(), b.atLeast ? "at least" : "at most",
                    number(b.bound, 2).c_str());

    nlohmann::json json{{"name", name_}, {"machine", machine()}, {"notes", notes_}};
    for (const auto& r : rows_) {
        nlohmann::json row;
        for (size_t i = 0; i < r.size(); ++i) row[columns_[i]] = r[i];
        json["rows"].push_back(row);
    }
    for (const Bar& b : bars_)
        json["bars"].push_back({{"name", b.name},
                                {"figure", b.figure},
                                {"bound", b.bound},
                                {"unit", b.unit},
                                {"sense", b.atLeast ? "at least" : "at most"},
                                {"holds", b.holds()}});
    const std::string path = folder + "/" + name_ + ".json";
    std::ofstream out(path);
    out << json.dump(2) << "\n";
    if (!out.flush()) die(absl::UnavailableError("cannot write " + path));
    return std::all_of(bars_.begin(), bars_.end(), [](const Bar& b) { return b.holds(); }) ? 0 : 1;
}

}  // namespace bulkhead::bench
