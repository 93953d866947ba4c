// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/client/client.h"

namespace bulkhead::client {

/// A job as an operator says it, at a command line or in the console: a file (default: the embedded
/// demo) and changes to it. Empty fields change nothing.
struct JobSource {
    std::string file;
    std::string replicas;
    std::string shards;
    std::string steps;
    std::string seed;
    std::string name;
    std::string data;
    std::string resume;
    std::vector<std::string> faults;
    std::vector<std::string> set;
    /// The program of a rank and its arguments, run where we are; then there is no demo.
    std::vector<std::string> command;
};

/// The embedded demo's job file: installed beside the programs, or in the sources we were built of.
std::string demoJobFile();

/// Reads the file and checks what can be checked here (faults, the data folder). Blocks for the
/// reading. Thread: any.
Result<JobText> readJob(const JobSource& job);

}  // namespace bulkhead::client
