// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QPoint>
#include <QString>
#include <functional>
#include <memory>

class QMimeData;
class QWidget;

namespace bulkhead::ui {

/// Lets a widget be dragged out of the window as a file; a click on it stays a click. Owned by the
/// widget. Thread: GUI.
class FileDrag final : public QObject {
    Q_OBJECT
  public:
    /// `make` writes the file when a drag begins and returns its path; empty: there is none.
    FileDrag(QWidget* widget, std::function<QString()> make);
    /// The data of a drag that begins now; null: none.
    [[nodiscard]] std::unique_ptr<QMimeData> data() const;

  protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

  private:
    void start();
    QWidget* widget_;
    std::function<QString()> make_;
    QPoint pressedAt_;
};

}  // namespace bulkhead::ui
