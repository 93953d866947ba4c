// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/math.h"

/// The number types that the model is compiled for.
#define BULKHEAD_FOR_NUMBERS(Class) \
    template class Class<float>;    \
    template class Class<double>;   \
    template class Class<Bf16>;
