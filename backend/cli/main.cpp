// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/cli.h"

int main(int argc, char** argv) {
    return bulkhead::cli::run(argc, argv);
}
