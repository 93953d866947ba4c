// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace bulkhead::cli {

struct Said {
    int code = -1;
    std::string out, err;
};

/// Runs the program in this process, as if `words` were typed behind its name.
Said type(std::vector<std::string> words);

}  // namespace bulkhead::cli
