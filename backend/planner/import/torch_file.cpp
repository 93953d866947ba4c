// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/torch_file.h"

#include "backend/model/names.h"
#include "backend/planner/import/zip.h"

namespace bulkhead::planner {
namespace {

using model::concat;

bool isNothing(const PickleObject* object) {
    return object == nullptr || std::holds_alternative<PickleNone>(object->value);
}

}  // namespace

absl::StatusOr<TorchFile> TorchFile::open(std::string_view bytes, std::string_view file) {
    auto entries = openZip(bytes, file);
    if (!entries.ok()) return entries.status();
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(concat(file, ": ", words...));
    };
    TorchFile out;
    out.file_ = file;
    std::string root;
    for (const auto& [name, data] : *entries)
        if (name.ends_with("/data.pkl") && name.find('/') == name.size() - 9)
            root = name.substr(0, name.size() - 8);
    if (root.empty()) return refuse("no data.pkl in it; this is no torch.save file");
    if (const auto order = entries->find(root + "byteorder");
        order != entries->end() && order->second != "little")
        return refuse("byteorder: expected little, found ", model::shortened(order->second, 20));
    const std::string prefix = root + "data/";
    for (const auto& [name, data] : *entries)
        if (name.starts_with(prefix)) out.storages_.emplace(name.substr(prefix.size()), data);
    auto pickle = readPickle(entries->at(root + "data.pkl"), file);
    if (!pickle.ok()) return pickle.status();
    out.pickle_ = *std::move(pickle);
    return out;
}

absl::Status TorchFile::wrong(std::string_view path, std::string_view key,
                              std::string_view why) const {
    return absl::InvalidArgumentError(
        concat(file_, ": ", path, path.empty() ? "" : ".", key, ": ", why));
}

absl::StatusOr<const PickleDict*> TorchFile::dict() const {
    const auto* dict = pickle_.get<PickleDict>(pickle_.root);
    if (dict == nullptr)
        return absl::InvalidArgumentError(concat(file_, ": expected a dict of the recorder"));
    return dict;
}

absl::StatusOr<std::optional<Tensor>> TorchFile::tensor(const PickleDict& dict,
                                                        std::string_view key,
                                                        std::string_view path) const {
    const PickleObject* found = pickle_.find(dict, key);
    if (isNothing(found)) return std::nullopt;
    const auto* index = std::get_if<PickleTensorIndex>(&found->value);
    if (index == nullptr) return wrong(path, key, "expected a tensor");
    const PickleTensor& tensor = pickle_.tensors[index->index];
    const auto storage = storages_.find(tensor.storage.key);
    if (storage == storages_.end())
        return wrong(path, key,
                     concat("its storage data/", model::shortened(tensor.storage.key, 40),
                            " is not in the file"));
    if (storage->second.size() / bytesOf(tensor.storage.element) != tensor.storage.size)
        return wrong(
            path, key,
            concat("its storage should hold ", tensor.storage.size, " ",
                   nameOf(tensor.storage.element), ", it has ", storage->second.size(), " bytes"));
    auto made = Tensor::make(tensor.storage.element, tensor.shape, tensor.strides, tensor.offset,
                             std::as_bytes(std::span(storage->second)));
    if (!made.ok()) return wrong(path, key, std::string(made.status().message()));
    return *std::move(made);
}

absl::StatusOr<std::optional<int64_t>> TorchFile::integer(const PickleDict& dict,
                                                          std::string_view key,
                                                          std::string_view path) const {
    const PickleObject* found = pickle_.find(dict, key);
    if (isNothing(found)) return std::nullopt;
    const auto* value = std::get_if<int64_t>(&found->value);
    if (value == nullptr) return wrong(path, key, "expected a whole number");
    return *value;
}

absl::StatusOr<std::optional<std::string>> TorchFile::text(const PickleDict& dict,
                                                           std::string_view key,
                                                           std::string_view path) const {
    const PickleObject* found = pickle_.find(dict, key);
    if (isNothing(found)) return std::nullopt;
    const auto* value = std::get_if<std::string_view>(&found->value);
    if (value == nullptr) return wrong(path, key, "expected a string");
    return std::string(*value);
}

absl::StatusOr<std::optional<std::vector<int64_t>>> TorchFile::integers(const PickleDict& dict,
                                                                        std::string_view key,
                                                                        std::string_view path,
                                                                        uint64_t most) const {
    const PickleObject* found = pickle_.find(dict, key);
    if (isNothing(found)) return std::nullopt;
    const auto* list = std::get_if<PickleList>(&found->value);
    if (list == nullptr) return wrong(path, key, "expected a list of whole numbers");
    if (list->items.size() > most)
        return wrong(path, key, concat("a list of ", list->items.size(), ", at most ", most));
    std::vector<int64_t> out;
    out.reserve(list->items.size());
    for (const PickleRef item : list->items) {
        const auto* value = pickle_.get<int64_t>(item);
        if (value == nullptr) return wrong(path, key, "expected a list of whole numbers");
        out.push_back(*value);
    }
    return out;
}

}  // namespace bulkhead::planner
