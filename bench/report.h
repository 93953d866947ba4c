// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

/// The common part of every benchmark's main, and the one way it says what it found: a table for
/// people, JSON for machines.
namespace bulkhead::bench {

/// Folders of the project, of results and of scratch.
struct Place {
    std::string root = ".";
    std::string out = "build/bench";
};
/// --root and --out.
void addPlace(CLI::App& app, Place& place);

/// Says why on stderr and ends the program with 2: what is to be measured did not happen.
[[noreturn]] void die(const absl::Status& status);
void need(const absl::Status& status);
template <class T>
T value(absl::StatusOr<T> result) {
    if (!result.ok()) die(result.status());
    return *std::move(result);
}

/// Median with spread, of whatever was collected. Empty input: count 0 and zeros.
struct Spread {
    size_t count = 0;
    double min = 0;
    double median = 0;
    double max = 0;
};
Spread spreadOf(std::vector<double> values);

class Report {
  public:
    /// `columns` head the table; units belong in them: "stall ms".
    Report(std::string name, std::vector<std::string> columns);

    void row(std::vector<std::string> cells);
    /// A line of prose above the table.
    void note(std::string line);
    /// "median survivors' stall <= 300 ms + exchange". Holds when figure <= bound, or >= for
    /// atLeast.
    void atMost(std::string name, double figure, double bound, std::string unit);
    void atLeast(std::string name, double figure, double bound, std::string unit);

    /// Prints to stdout and writes `folder`/NAME.json, or dies. What main returns: 0 when all bars
    /// hold, else 1.
    [[nodiscard]] int finish(const std::string& folder) const;

  private:
    struct Bar {
        std::string name;
        double figure = 0;
        double bound = 0;
        std::string unit;
        bool atLeast = false;
        bool holds() const { return atLeast ? figure >= bound : figure <= bound; }
    };
    std::string name_;
    std::vector<std::string> columns_;
    std::vector<std::string> notes_;
    std::vector<std::vector<std::string>> rows_;
    std::vector<Bar> bars_;
};

/// "12.3", trimmed to what a reader can use.
std::string number(double value, int decimals = 1);

}  // namespace bulkhead::bench
