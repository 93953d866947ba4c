// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "backend/common/fields.h"

/// Described structs as rows: fields in declared order are columns of the same names. SQLite keeps
/// a NaN as NULL, which reads back as NaN; unsigned values keep their bits.
namespace bulkhead::history {

class RowBinder {
  public:
    RowBinder(SQLite::Statement& statement, int first) : statement_(statement), at_(first) {}

    template <class T>
    void operator()(std::string_view, const T& value) {
        put(value);
    }
    template <class T>
    RowBinder& put(const T& value) {
        const int index = at_++;
        if constexpr (std::is_enum_v<T>)
            statement_.bind(index, std::string(enumName(value)));
        else if constexpr (std::same_as<T, double>)
            statement_.bind(index, value);
        else if constexpr (std::integral<T>)
            statement_.bind(index, static_cast<int64_t>(value));
        else
            statement_.bind(index, std::string(value));
        return *this;
    }

  private:
    SQLite::Statement& statement_;
    int at_;
};

class RowReader {
  public:
    RowReader(SQLite::Statement& statement, int first) : statement_(statement), at_(first) {}

    template <class T>
    void operator()(std::string_view, T& value) {
        const SQLite::Column column = statement_.getColumn(at_++);
        if constexpr (std::same_as<T, double>)
            value = column.isNull() ? std::numeric_limits<double>::quiet_NaN() : column.getDouble();
        else if constexpr (std::same_as<T, bool>)
            value = column.getInt64() != 0;
        else if constexpr (std::integral<T>)
            value = static_cast<T>(column.getInt64());
        else
            value = column.getString();
    }

  private:
    SQLite::Statement& statement_;
    int at_;
};

struct ColumnNames {
    std::string names;
    std::string marks;
    template <class T>
    void operator()(std::string_view name, T&) {
        names += names.empty() ? "" : ", ";
        names += name;
        marks += marks.empty() ? "?" : ", ?";
    }
};

/// "lineage, step, ..." and "?, ?, ..."
template <class T>
ColumnNames columnsOf() {
    T value{};
    ColumnNames columns;
    T::fields(value, columns);
    return columns;
}

template <class T>
T readRow(SQLite::Statement& statement, int first = 0) {
    T value{};
    RowReader reader(statement, first);
    T::fields(value, reader);
    return value;
}

}  // namespace bulkhead::history
