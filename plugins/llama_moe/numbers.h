// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/math.h"

/// The number types that the model is compiled for.
// A template's name cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define BULKHEAD_FOR_NUMBERS(Class) \
    template class Class<float>;    \
    template class Class<double>;   \
    template class Class<Bf16>;
// NOLINTEND(bugprone-macro-parentheses)
