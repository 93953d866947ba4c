// SPDX-License-Identifier: Apache-2.0
#include "bench/ftar/contenders.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace bulkhead::bench {

std::vector<Contender> contenders(const Folders& folders, int ranks) {
    const std::string ours = folders.programs + "/bulkhead-bench-ftar-ours";
    const std::string bare = folders.programs + "/bulkhead-bench-ftar-bare";
    const std::string mpi =
        absl::StrCat("mpirun --allow-run-as-root --oversubscribe -n ", ranks, " --mca btl self,");
    std::vector<Contender> all{
        {"shm", ours, "shm"},
        {"tcp", ours, "tcp"},
        {"tcp bfloat16", ours, "tcp,bfloat16"},
        {"OpenMPI shm", mpi + "vader " + folders.peers + "/mpi", ""},
        {"OpenMPI tcp", mpi + "tcp " + folders.peers + "/mpi", ""},
        {"Gloo ring tcp", folders.peers + "/gloo", folders.out + "/gloo-store"},
        {"memory bound", folders.programs + "/bulkhead-bench-ftar-bound", ""}};
    if (ranks < 4) return all;  // a ring or hosts of one
    const std::vector<Contender> variants{{"shm bfloat16", ours, "shm,bfloat16", true},
                                          {"shm bare", bare, "shm", true},
                                          {"shm bare, input kept", bare, "shm,retained", true},
                                          {"tcp bare", bare, "tcp", true},
                                          {"tcp bare, input kept", bare, "tcp,retained", true},
                                          {"tcp unsummed", ours, "tcp,unsummed", true},
                                          {"tcp encrypted", ours, "tcp,encrypted", true},
                                          {"tcp 2 connections", ours, "tcp,two", true},
                                          {"tcp 4 connections", ours, "tcp,four", true},
                                          {"tcp ring", ours, "tcp,ring", true},
                                          {"tcp ring bfloat16", ours, "tcp,ring,bfloat16", true},
                                          {"hosts direct", ours, "hosts", true},
                                          {"hosts tiers", ours, "hosts,tiers", true}};
    all.insert(all.end(), variants.begin(), variants.end());
    return all;
}

bool Contender::takesPart(size_t bytes) const {
    return !variant || (bytes >= kMiB && bytes <= 64 * kMiB);
}

int iterationsFor(size_t bytes) {
    return bytes <= kMiB ? 100 : bytes <= 16 * kMiB ? 12 : bytes <= 64 * kMiB ? 6 : 3;
}

std::vector<double> runOnce(const Contender& contender, int ranks, size_t bytes, int iterations,
                            const Folders& folders) {
    const std::string store = folders.out + "/gloo-store";
    std::filesystem::remove_all(store);
    std::filesystem::create_directories(store);
    const std::string command = absl::StrCat(contender.command, " ", ranks, " ", bytes, " ",
                                             iterations, " ", contender.rest);
    std::vector<double> ms;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return ms;
    char line[128];
    while (std::fgets(line, sizeof line, pipe) != nullptr) ms.push_back(std::atof(line));
    if (::pclose(pipe) != 0) ms.clear();
    return ms;
}

}  // namespace bulkhead::bench
