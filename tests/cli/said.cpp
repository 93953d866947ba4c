// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/said.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <iostream>

#include "backend/cli/cli.h"

namespace bulkhead::cli {

Said type(std::vector<std::string> words) {
    words.insert(words.begin(), "bulkheadctl");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Said said;
    said.code = run(static_cast<int>(argv.size()), argv.data());
    std::fflush(stdout);
    std::cout.flush();
    said.out = testing::internal::GetCapturedStdout();
    said.err = testing::internal::GetCapturedStderr();
    return said;
}

}  // namespace bulkhead::cli
