// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {

/// A pickle read as data (Python's pickletools describes the opcodes; certain). A pickle is a
/// program that may call anything; this reader knows just the opcodes that plain values and torch
/// tensors need, and just these callables, which it does not call but recognises:
/// collections.OrderedDict(), torch._utils._rebuild_tensor_v2 and torch's storage types. Everything
/// else is refused with the opcode's place. At most 32 MiB and 8 M objects; objects may refer to
/// each other in any way (also in circles), so nobody may walk them without a plan.
struct PickleObject;
using PickleRef = uint32_t;  ///< index into Pickle::objects

struct PickleNone {};
struct PickleGlobal {
    std::string_view module, name;
};
struct PickleTuple {
    std::vector<PickleRef> items;
};
struct PickleList {
    std::vector<PickleRef> items;
};
struct PickleDict {
    std::vector<std::pair<PickleRef, PickleRef>> items;
};
/// A torch storage, by the name of the zip entry that holds it.
struct PickleStorage {
    Element element = Element::kU8;
    std::string_view key;
    uint64_t size = 0;
};
/// A torch tensor over a storage, in elements.
struct PickleTensor {
    PickleStorage storage;
    uint64_t offset = 0;
    std::vector<uint64_t> shape, strides;
};

/// Index into Pickle::tensors, which are kept apart because they are large and few.
struct PickleTensorIndex {
    uint32_t index = 0;
};

struct PickleObject {
    std::variant<PickleNone, bool, int64_t, double, std::string_view, PickleTuple, PickleList,
                 PickleDict, PickleGlobal, PickleStorage, PickleTensorIndex>
        value;
};

/// Strings and names point into the bytes that were read.
struct Pickle {
    std::vector<PickleObject> objects;
    std::vector<PickleTensor> tensors;
    PickleRef root = 0;

    /// The object if it is of that kind, else null.
    template <class T>
    const T* get(PickleRef ref) const {
        return std::get_if<T>(&objects[ref].value);
    }
    /// A dict's value under a string key; null when there is none. The last one wins, as in Python.
    const PickleObject* find(const PickleDict& dict, std::string_view key) const;
};

[[nodiscard]] absl::StatusOr<Pickle> readPickle(std::string_view bytes, std::string_view file);

}  // namespace bulkhead::planner
