from keras_vit.training.progress import Progress, clock_time


def test_a_line_gives_loss_accuracy_rate_and_time_left():
    lines, times = [], iter([100.0, 104.0])
    progress = Progress(total_steps=1000, batch_size=8, write=lines.append, clock=lambda: next(times))
    seconds = progress.report(step=200, steps=200, loss=0.25, accuracy=0.9876)
    assert seconds == 4.0
    assert lines == ["step  200/1000  loss 0.2500  accuracy  98.8 %  400 images/s  0:16 left"]


def test_times_are_read_by_people():
    assert [clock_time(s) for s in (0, 59.6, 61, 3599, 3725)] == ["0:00", "1:00", "1:01", "59:59", "1:02:05"]
