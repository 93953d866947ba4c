// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/output_file.h"
#include "backend/runtime/checkpoint/tensor_table.h"

/// A file as torch.save() writes it: a zip of stored entries with a pickle, the tensors' bytes, and
/// a version. The pickle names nothing but collections.OrderedDict, torch._utils._rebuild_tensor_v2
/// and torch's storages, so that torch.load(weights_only=True) reads it. No torch is needed here.
namespace bulkhead::interchange {

/// A value of the pickle; lists and dictionaries by nesting.
struct TorchTensor {
    std::string dtype;
    std::vector<uint64_t> shape;
    size_t storage = 0;  ///< number of its storage; two tensors may share one
};
class TorchValue {
  public:
    struct Dict {
        struct Item;
        std::vector<Item> items;
        std::map<runtime::PathWord, size_t> places;  ///< in `items`
        bool ordered = false;                        ///< written as an OrderedDict
        bool list = false;  ///< written as one, as is whatever has all indices from 0 on
        TorchValue& operator[](const runtime::PathWord& key);
    };
    std::variant<std::monostate, bool, int64_t, double, std::string, TorchTensor, Dict> value;

    /// The place at the end of `path`, made on the way.
    TorchValue& at(const std::vector<runtime::PathWord>& path);
    static TorchValue ofJson(const std::string& json);
    /// Likewise of numberJson(): "inf" is a number.
    static TorchValue ofNumber(const std::string& json);
};
struct TorchValue::Dict::Item {
    runtime::PathWord key;
    TorchValue value;
};

/// Bytes of storage `number`, asked for once each and in order.
using StorageBytes = std::function<absl::StatusOr<std::vector<std::byte>>(size_t number)>;

/// InvalidArgument for a dtype that torch.save's storages have no name for.
[[nodiscard]] absl::Status checkTorchDtype(const std::string& name, const std::string& dtype);

/// `more` are entries of text beside it. `zip64From` is where sizes and offsets take 64 bits.
[[nodiscard]] absl::Status writeTorchFile(OutputFile& out, const TorchValue& root, size_t storages,
                                          const StorageBytes& bytesOf,
                                          const std::map<std::string, std::string>& more,
                                          uint64_t zip64From = 0xffffffff);

}  // namespace bulkhead::interchange
