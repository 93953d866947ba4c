// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/import/pickle.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {

/// A file of torch.save (zip form, torch 1.6 and later): `ROOT/data.pkl` and the storages
/// `ROOT/data/KEY` (torch/serialization.py and files written by it; certain). Read as data only,
/// see pickle.h and zip.h. Points into the bytes it was made from. Thread: a value.
class TorchFile {
  public:
    [[nodiscard]] static absl::StatusOr<TorchFile> open(std::string_view bytes,
                                                        std::string_view file);

    const Pickle& pickle() const { return pickle_; }
    /// The dict that was saved. InvalidArgument when something else was.
    [[nodiscard]] absl::StatusOr<const PickleDict*> dict() const;

    // Fields of a dict; `path` is the dict's own place, for messages. Absent or None: nullopt.
    [[nodiscard]] absl::StatusOr<std::optional<Tensor>> tensor(const PickleDict& dict,
                                                               std::string_view key,
                                                               std::string_view path) const;
    [[nodiscard]] absl::StatusOr<std::optional<int64_t>> integer(const PickleDict& dict,
                                                                 std::string_view key,
                                                                 std::string_view path) const;
    [[nodiscard]] absl::StatusOr<std::optional<std::string>> text(const PickleDict& dict,
                                                                  std::string_view key,
                                                                  std::string_view path) const;
    /// A list of at most `most` numbers.
    [[nodiscard]] absl::StatusOr<std::optional<std::vector<int64_t>>> integers(
        const PickleDict& dict, std::string_view key, std::string_view path, uint64_t most) const;

  private:
    absl::Status wrong(std::string_view path, std::string_view key, std::string_view why) const;

    std::string file_;
    Pickle pickle_;
    std::map<std::string, std::string_view, std::less<>> storages_;  ///< by key
};

}  // namespace bulkhead::planner
