// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {

/// One array of NumPy's npy format, versions 1 to 3 (numpy.lib.format's description; certain):
/// magic, version, header length, a Python dict literal of descr, fortran_order and shape, then the
/// numbers. Little-endian or one-byte numbers of the kinds in Element; Fortran order is read
/// through strides. Refused, naming file and place: structured and object types (they may hold
/// pickles), big-endian, headers over 64 KiB, more than 8 dimensions, data shorter or longer than
/// the shape says. The tensor points into `bytes`. Thread: any.
[[nodiscard]] absl::StatusOr<Tensor> parseNpy(std::string_view bytes, std::string_view file);

}  // namespace bulkhead::planner
