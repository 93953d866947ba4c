// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fenced_device.h"
#include "tests/plugins/gpu_place.h"
#include "tests/plugins/loop_machine.h"

namespace bulkhead::test {

const std::vector<GpuPlace>& gpuPlaces() {
    static const std::vector<GpuPlace> places{{"Loops", fencedDeviceApi(), loopMachine(), ""},
                                              {"Threads", fencedDeviceApi(), threadMachine(), ""}};
    return places;
}

}  // namespace bulkhead::test
