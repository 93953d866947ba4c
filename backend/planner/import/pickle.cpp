// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/pickle.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <optional>
#include <unordered_map>

#include "backend/model/names.h"
#include "backend/planner/import/little_endian.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr size_t kMostBytes = size_t{32} << 20;
constexpr size_t kMostObjects = 8'000'000;
constexpr PickleRef kMark = UINT32_MAX;

std::optional<Element> storageElement(const PickleGlobal& global) {
    static const std::map<std::string_view, Element> kStorages = {
        {"BoolStorage", Element::kBool}, {"ByteStorage", Element::kU8},
        {"CharStorage", Element::kI8},   {"ShortStorage", Element::kI16},
        {"IntStorage", Element::kI32},   {"LongStorage", Element::kI64},
        {"FloatStorage", Element::kF32}, {"DoubleStorage", Element::kF64},
    };
    const auto found = kStorages.find(global.name);
    if (global.module != "torch" || found == kStorages.end()) return std::nullopt;
    return found->second;
}

bool isKnown(const PickleGlobal& global) {
    return storageElement(global).has_value() ||
           (global.module == "collections" && global.name == "OrderedDict") ||
           (global.module == "torch._utils" && global.name == "_rebuild_tensor_v2");
}

/// The pickle machine: a stack of references, a memo, and nothing that can be called.
class Machine {
  public:
    Machine(std::string_view bytes, std::string_view file) : bytes_(bytes), file_(file) {}

    absl::StatusOr<Pickle> run() {
        if (bytes_.size() > kMostBytes)
            return wrong(concat("a pickle of ", bytes_.size(), " bytes, at most ", kMostBytes,
                                " are read; record a shorter stretch"));
        while (status_.ok() && !stopped_) {
            op_ = at_;
            step();
        }
        if (!status_.ok()) return status_;
        if (stack_.size() != 1 || stack_[0] == kMark) return wrong("one value at the end");
        out_.root = stack_[0];
        return std::move(out_);
    }

  private:
    absl::Status wrong(const std::string& why) {
        return absl::InvalidArgumentError(concat(file_, ": pickle byte ", op_, ": ", why));
    }
    void fail(const std::string& why) {
        if (status_.ok()) status_ = wrong(why);
    }

    // Bytes.
    bool need(size_t count) {
        if (bytes_.size() - at_ >= count) return true;
        fail("the pickle is cut off");
        return false;
    }
    template <class T>
    T number() {
        if (!need(sizeof(T))) return T{};
        const T value = numberAt<T>(bytes_, at_);
        at_ += sizeof(T);
        return value;
    }
    std::string_view text(size_t length) {
        if (!need(length)) return {};
        at_ += length;
        return bytes_.substr(at_ - length, length);
    }
    std::string_view line() {
        const size_t end = bytes_.find('\n', at_);
        if (end == std::string_view::npos) return text(bytes_.size() - at_ + 1);
        const std::string_view found = bytes_.substr(at_, end - at_);
        at_ = end + 1;
        return found;
    }

    // Stack and objects.
    template <class T>
    void push(T&& value) {
        if (!status_.ok()) return;
        if (out_.objects.size() >= kMostObjects)
            return fail(concat("more than ", kMostObjects, " objects; record a shorter stretch"));
        stack_.push_back(static_cast<PickleRef>(out_.objects.size()));
        out_.objects.push_back({std::forward<T>(value)});
    }
    PickleRef pop() {
        if (stack_.empty() || stack_.back() == kMark) {
            fail("a value is missing on the stack");
            return kMark;
        }
        const PickleRef ref = stack_.back();
        stack_.pop_back();
        return ref;
    }
    /// All above the last mark, which goes too.
    std::vector<PickleRef> popToMark() {
        const auto mark = std::find(stack_.rbegin(), stack_.rend(), kMark);
        if (mark == stack_.rend()) {
            fail("a mark is missing on the stack");
            return {};
        }
        std::vector<PickleRef> items(mark.base(), stack_.end());
        stack_.erase(mark.base() - 1, stack_.end());
        return items;
    }
    template <class T>
    T* as(PickleRef ref) {
        return ref == kMark ? nullptr : std::get_if<T>(&out_.objects[ref].value);
    }
    template <class T>
    T* top() {
        return stack_.empty() ? nullptr : as<T>(stack_.back());
    }

    void tuple(size_t length) {
        PickleTuple made;
        made.items.resize(length);
        for (size_t i = length; i-- > 0;) made.items[i] = pop();
        push(std::move(made));
    }
    void append(std::vector<PickleRef> items) {
        auto* list = top<PickleList>();
        if (list == nullptr) return fail("items for a list that is not there");
        list->items.insert(list->items.end(), items.begin(), items.end());
    }
    void setItems(const std::vector<PickleRef>& items) {
        auto* dict = top<PickleDict>();
        if (dict == nullptr || items.size() % 2 != 0)
            return fail("items for a dict that is not there");
        for (size_t i = 0; i < items.size(); i += 2)
            dict->items.emplace_back(items[i], items[i + 1]);
    }
    void remember(uint64_t slot) {
        if (stack_.empty() || stack_.back() == kMark) return fail("nothing to remember");
        if (memo_.size() >= kMostObjects) return fail("too many values to remember");
        memo_[slot] = stack_.back();
    }
    void recall(uint64_t slot) {
        const auto found = memo_.find(slot);
        if (found == memo_.end()) return fail("a value that was not remembered");
        stack_.push_back(found->second);
    }
    void global() {
        PickleGlobal made;
        made.module = line();
        made.name = line();
        if (!status_.ok()) return;
        if (!isKnown(made))
            return fail(concat("it asks for ", model::shortened(made.module, 60), ".",
                               model::shortened(made.name, 60),
                               ", which is not among the few names that data needs; the file is "
                               "refused and nothing of it was run"));
        push(made);
    }
    void longInteger() {
        const size_t length = number<uint8_t>();
        if (length > 8) return fail("an integer of more than 64 bits");
        const std::string_view digits = text(length);
        uint64_t value = 0;
        for (size_t i = 0; i < digits.size(); ++i)
            value |= uint64_t{static_cast<uint8_t>(digits[i])} << (8 * i);
        if (length > 0 && length < 8 &&
            (static_cast<uint8_t>(digits.empty() ? 0 : digits.back()) & 0x80))
            value |= ~uint64_t{0} << (8 * length);
        push(static_cast<int64_t>(value));
    }
    void bigEndianDouble() {
        const std::string_view digits = text(8);
        uint64_t bits = 0;
        for (const char digit : digits) bits = bits << 8 | static_cast<uint8_t>(digit);
        push(std::bit_cast<double>(bits));
    }

    std::optional<uint64_t> natural(PickleRef ref) {
        const auto* value = as<int64_t>(ref);
        if (value == nullptr || *value < 0) return std::nullopt;
        return static_cast<uint64_t>(*value);
    }
    std::optional<std::vector<uint64_t>> naturals(PickleRef ref) {
        const auto* tuple = as<PickleTuple>(ref);
        if (tuple == nullptr || tuple->items.size() > kMostDimensions) return std::nullopt;
        std::vector<uint64_t> out;
        for (const PickleRef item : tuple->items) {
            const auto value = natural(item);
            if (!value) return std::nullopt;
            out.push_back(*value);
        }
        return out;
    }
    /// ('storage', type, key, location, size) names a storage.
    void persistent() {
        const auto* id = as<PickleTuple>(pop());
        if (id == nullptr || id->items.size() != 5) return fail("a storage of five parts");
        const auto* kind = as<std::string_view>(id->items[0]);
        const auto* type = as<PickleGlobal>(id->items[1]);
        const auto* key = as<std::string_view>(id->items[2]);
        const auto size = natural(id->items[4]);
        const auto element = type != nullptr ? storageElement(*type) : std::nullopt;
        if (kind == nullptr || *kind != "storage" || !element || key == nullptr || !size)
            return fail("a storage with type, key and size");
        push(PickleStorage{*element, *key, *size});
    }
    void reduce() {
        const PickleRef arguments = pop();
        const auto* callable = as<PickleGlobal>(pop());
        const auto* given = as<PickleTuple>(arguments);
        if (callable == nullptr || given == nullptr) return fail("a known name and a tuple");
        if (callable->name == "OrderedDict" && given->items.empty()) return push(PickleDict{});
        if (callable->name != "_rebuild_tensor_v2" || given->items.size() < 6)
            return fail("OrderedDict() or a tensor of six parts");
        const auto* storage = as<PickleStorage>(given->items[0]);
        const auto offset = natural(given->items[1]);
        auto shape = naturals(given->items[2]), strides = naturals(given->items[3]);
        if (storage == nullptr || !offset || !shape || !strides || shape->size() != strides->size())
            return fail("a tensor with storage, offset, size and stride");
        out_.tensors.push_back({*storage, *offset, *std::move(shape), *std::move(strides)});
        push(PickleTensorIndex{static_cast<uint32_t>(out_.tensors.size() - 1)});
    }

    void step();

    std::string_view bytes_, file_;
    size_t at_ = 0, op_ = 0;
    bool stopped_ = false;
    absl::Status status_;
    std::vector<PickleRef> stack_;
    std::unordered_map<uint64_t, PickleRef> memo_;
    Pickle out_;
};

void Machine::step() {
    const auto op = number<uint8_t>();
    if (!status_.ok()) return;
    switch (op) {
        case 0x80:  // PROTO
            if (const auto version = number<uint8_t>(); version > 5)
                fail(concat("pickle protocol ", int{version}, ", at most 5 is read"));
            return;
        case 0x95:
            text(8);
            return;  // FRAME: only says how much comes
        case '.':
            stopped_ = true;
            return;  // STOP
        case '(':
            stack_.push_back(kMark);
            return;  // MARK
        case 'N':
            push(PickleNone{});
            return;  // NONE
        case 0x88:
            push(true);
            return;  // NEWTRUE
        case 0x89:
            push(false);
            return;  // NEWFALSE
        case 'J':
            push(int64_t{number<int32_t>()});
            return;  // BININT
        case 'K':
            push(int64_t{number<uint8_t>()});
            return;  // BININT1
        case 'M':
            push(int64_t{number<uint16_t>()});
            return;  // BININT2
        case 0x8a:
            longInteger();
            return;  // LONG1
        case 'G':
            bigEndianDouble();
            return;  // BINFLOAT
        case 'X':
            push(text(number<uint32_t>()));
            return;  // BINUNICODE
        case 0x8c:
            push(text(number<uint8_t>()));
            return;  // SHORT_BINUNICODE
        case ')':
            push(PickleTuple{});
            return;  // EMPTY_TUPLE
        case 0x85:
            tuple(1);
            return;  // TUPLE1
        case 0x86:
            tuple(2);
            return;  // TUPLE2
        case 0x87:
            tuple(3);
            return;  // TUPLE3
        case 't':
            push(PickleTuple{popToMark()});
            return;  // TUPLE
        case ']':
            push(PickleList{});
            return;  // EMPTY_LIST
        case 'a': {  // APPEND
            const PickleRef item = pop();
            append({item});
            return;
        }
        case 'e':
            append(popToMark());
            return;  // APPENDS
        case '}':
            push(PickleDict{});
            return;  // EMPTY_DICT
        case 's': {  // SETITEM
            const PickleRef value = pop(), key = pop();
            setItems({key, value});
            return;
        }
        case 'u':
            setItems(popToMark());
            return;  // SETITEMS
        case 'c':
            global();
            return;  // GLOBAL
        case 'q':
            remember(number<uint8_t>());
            return;  // BINPUT
        case 'r':
            remember(number<uint32_t>());
            return;  // LONG_BINPUT
        case 0x94:
            remember(memo_.size());
            return;  // MEMOIZE
        case 'h':
            recall(number<uint8_t>());
            return;  // BINGET
        case 'j':
            recall(number<uint32_t>());
            return;  // LONG_BINGET
        case 'R':
            reduce();
            return;  // REDUCE
        case 'Q':
            persistent();
            return;  // BINPERSID
        default:
            break;
    }
    char shown[8];
    std::snprintf(shown, sizeof shown, "0x%02x", unsigned{op});
    fail(
        concat("opcode ", shown, " is not among those that plain data needs; the file is refused"));
}

}  // namespace

const PickleObject* Pickle::find(const PickleDict& dict, std::string_view key) const {
    for (auto item = dict.items.rbegin(); item != dict.items.rend(); ++item)
        if (const auto* name = get<std::string_view>(item->first); name != nullptr && *name == key)
            return &objects[item->second];
    return nullptr;
}

absl::StatusOr<Pickle> readPickle(std::string_view bytes, std::string_view file) {
    return Machine(bytes, file).run();
}

}  // namespace bulkhead::planner
