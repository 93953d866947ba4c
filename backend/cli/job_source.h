// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/client/client.h"

namespace CLI {
class App;
}

namespace bulkhead::cli {

/// A job as the command line says it: a file (default: the embedded demo) and changes to it.
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

    bool hasFile() const { return !file.empty(); }
    bool sets(const std::string& key) const;
};

/// --job, --replicas, --shards, --steps, --seed, --name, --data, --fault, --set, --resume
void addJobOptions(CLI::App& verb, JobSource& job);

/// Reads the file and checks what can be checked here (faults, the data folder).
client::Result<client::JobText> readJob(const JobSource& job);

/// As a TOML string.
std::string quoted(const std::string& text);

}  // namespace bulkhead::cli
