// SPDX-License-Identifier: Apache-2.0
// One reader under clang's libFuzzer; the reader is named by $BULKHEAD_READER, its seeds are
// written to the folder $BULKHEAD_SEEDS when that is set.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/fuzz/targets.h"

namespace {

using bulkhead::fuzz::Target;

const Target* chosen() {
    const char* name = std::getenv("BULKHEAD_READER");
    for (const Target& target : bulkhead::fuzz::targets())
        if (name != nullptr && target.name == name) return &target;
    std::fprintf(stderr, "set BULKHEAD_READER to one of:");
    for (const Target& target : bulkhead::fuzz::targets())
        std::fprintf(stderr, " %s", std::string(target.name).c_str());
    std::fprintf(stderr, "\n");
    std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const Target* target = chosen();
    if (const char* folder = std::getenv("BULKHEAD_SEEDS"))
        for (size_t i = 0; i < target->seeds.size(); ++i) {
            std::ofstream out(std::string(folder) + "/seed" + std::to_string(i), std::ios::binary);
            out << target->seeds[i];
        }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Target* target = chosen();
    target->run({reinterpret_cast<const char*>(data), size});
    return 0;
}
