// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

namespace bulkhead::testing {

struct Ran {
    int code = -1;  ///< exit code, or 128 + signal
    std::string out;
    long lines() const { return std::count(out.begin(), out.end(), '\n'); }
};

/// Runs a shell command to its end; what it wrote to standard output.
inline Ran shell(const std::string& command) {
    Ran ran;
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> text;
    for (size_t n; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
        ran.out.append(text.data(), n);
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
}

/// The same with standard error in `out` too.
inline Ran shellBoth(const std::string& command) {
    return shell(command + " 2>&1");
}

/// The same with standard error alone in `out`.
inline Ran shellErrors(const std::string& command) {
    return shell(command + " 2>&1 >/dev/null");
}

}  // namespace bulkhead::testing
