// SPDX-License-Identifier: GPL-3.0-only
#include "tests/support/made_run_file.h"

#include <cstdio>
#include <cstdlib>
#include <string>

/// Writes the made-up run as a run file: bulkhead_console_sample_run_file FILE [STEPS].
int main(int argc, char** argv) {
    if (argc < 2) return 2;
    const absl::Status written =
        bulkhead::test::writeSampleRun(argv[1], argc > 2 ? std::atoi(argv[2]) : 140);
    if (!written.ok()) std::fprintf(stderr, "%s\n", std::string(written.message()).c_str());
    return written.ok() ? 0 : 1;
}
