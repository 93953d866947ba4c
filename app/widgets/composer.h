// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QScrollArea>

class QFormLayout;
class QLabel;
class QPushButton;

namespace bulkhead::ui {

/// The side column in which something that hurts a job is put together: fields, what they say in
/// words, what it would do, and the button. Everything handed in becomes a child. GUI thread.
class Composer : public QScrollArea {
  public:
    Composer();

    /// `words` stand before the field and are its accessible name.
    void addField(const QString& words, QWidget* field);
    /// A row without words before it; its own are its accessible name.
    void addRow(QWidget* widget);
    /// Below all fields.
    void finish(QLabel* sentence, QLabel* effect, QPushButton* danger);
    /// Fields that do not apply are hidden through it.
    QFormLayout* form() const { return form_; }

  private:
    QFormLayout* form_;
};

}  // namespace bulkhead::ui
